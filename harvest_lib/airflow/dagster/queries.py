"""The GraphQL queries to Dagster 1.13."""

_RUN = "runId status creationTime tags { key value }"

VERSION = "query HarvestVersion { version }"

JOBS = """
query HarvestJobs {
  workspaceOrError {
    __typename
    ... on Workspace {
      locationEntries {
        name
        locationOrLoadError {
          ... on RepositoryLocation { repositories { name jobs { name } } }
          ... on PythonError { message }
        }
      }
    }
    ... on PythonError { message }
  }
}
"""

RUNS = f"""
query HarvestRuns($filter: RunsFilter!) {{
  runsOrError(filter: $filter, limit: 100) {{
    __typename
    ... on Runs {{ results {{ {_RUN} }} }}
    ... on InvalidPipelineRunsFilterError {{ message }}
    ... on PythonError {{ message }}
  }}
}}
"""

PARTITION_SETS = """
query HarvestPartitionSets($repository: RepositorySelector!, $job: String!) {
  partitionSetsOrError(repositorySelector: $repository, pipelineName: $job) {
    __typename
    ... on PartitionSets { results { name } }
    ... on Error { message }
  }
}
"""

PARTITION_KEYS = """
query HarvestPartitionKeys($selector: PipelineSelector!, $limit: Int!, $after: String, $reverse: Boolean) {
  pipelineOrError(params: $selector) {
    __typename
    ... on Pipeline { partitionKeysOrError(limit: $limit, cursor: $after, reverse: $reverse) { partitionKeys } }
    ... on Error { message }
  }
}
"""

LAUNCH = f"""
mutation HarvestLaunch($executionParams: ExecutionParams!) {{
  launchRun(executionParams: $executionParams) {{
    __typename
    ... on LaunchRunSuccess {{ run {{ {_RUN} }} }}
    ... on RunConfigValidationInvalid {{ errors {{ message }} }}
    ... on Error {{ message }}
  }}
}}
"""

WORK = """
query HarvestWork($runId: ID!, $after: String) {
  runOrError(runId: $runId) {
    __typename
    ... on Run {
      stepStats { stepKey status }
      eventConnection(afterCursor: $after, limit: 1000) {
        events {
          __typename
          ... on AssetCheckEvaluationPlannedEvent { checkName assetKey { path } }
          ... on AssetCheckEvaluationEvent { evaluation { checkName assetKey { path } success } }
          ... on ExecutionStepFailureEvent { stepKey error { message causes { message } } }
          ... on RunFailureEvent { error { message causes { message } } }
          ... on MaterializationEvent { materialized: assetKey { path } }
        }
        cursor
        hasMore
      }
    }
    ... on PythonError { message }
  }
}
"""

TERMINATE = """
mutation HarvestTerminate($runId: String!) {
  terminateRun(runId: $runId) {
    __typename
    ... on TerminateRunSuccess { run { status } }
    ... on TerminateRunFailure { message run { status } }
    ... on Error { message }
  }
}
"""
