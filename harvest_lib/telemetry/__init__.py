"""Metrics and health of a process. Working threads increase counters; a request, such as a scrape, reads them.

| module | contents |
| --- | --- |
| `counts` | counters and histograms, filled by the working threads; counters of the whole process |
| `catalogue` | every metric by name, type, labels and meaning; the source of `docs/metrics.md` |
| `process` | readings that every process has |
| `exposition` | readings in Prometheus' formats |
| `otel_metrics` | readings for OpenTelemetry, where the process has a meter provider |
| `batch_span` | the span of messages that are sent, or processed, together |
| `trace_context` | the span in which a record was written, as its headers |
| `health` | health checks, and the time that a backlog was not reduced |
| `server` | `/metrics`, `/livez`, `/readyz` and `/progress` over HTTP |
| `liveness` | the alive file, and the messages to systemd |
| `service` | all reports of a pipeline or a consumer |

Promises
- Counters are increased once for each batch, not for each record, and no work waits for a request.
- No label contains the key or the value of a record. The number of values of a label is bounded; further values are
  counted under `other`.
"""
