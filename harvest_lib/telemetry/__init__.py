"""Numbers and health of a process, for machines: counted where it works, read where somebody asks.

| module | what it holds |
| --- | --- |
| `counts` | counters and histograms, filled by threads that work; those of the whole process |
| `catalogue` | every metric by name, type, labels and meaning; `docs/metrics.md` is made of it |
| `process` | readings that every process has |
| `exposition` | readings as Prometheus wants them |
| `otel_metrics` | readings for OpenTelemetry, where the process has a meter provider |
| `batch_span` | the span of messages that are sent, or processed, together |
| `trace_context` | the span in which a record was written, as its headers |
| `health` | what is healthy, and whether a backlog is being reduced |
| `server` | `/metrics`, `/livez`, `/readyz` and `/progress` over HTTP |

Promises
- Nothing is counted for each record, and nothing waits for whoever asks.
- No label holds a key or a value of a record. A label has a bounded number of values; the rest is `other`.
"""
