"""What Prometheus and Grafana are told: rules for alerts with their tests, and a dashboard."""
