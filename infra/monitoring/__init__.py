"""Configuration of Prometheus and Grafana: alert rules with their tests, and a dashboard."""
