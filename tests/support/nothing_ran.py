"""A session in which every test was skipped proves nothing, so it does not succeed."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End as where no test was collected, unless one has passed."""
    config = session.config
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus != 0 or reporter is None or hasattr(config, "workerinput") or config.option.collectonly:
        return
    if not reporter.stats.get("passed"):
        reporter.write_line("\nno test has run: all were skipped", red=True)
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
