"""Configuration of Prometheus and Grafana: rules for alerts with their tests, and a dashboard."""
