"""Metrics and health of a process, for machines: counted where it works, read on request.

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
- No counter grows record by record, and no work waits for a request.
- No label holds a key or a value of a record. A label has a bounded number of values; the rest is `other`.
"""
