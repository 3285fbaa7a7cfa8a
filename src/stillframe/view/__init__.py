"""Pictures of executions: space-time diagrams as coordinates, and as SVG."""
