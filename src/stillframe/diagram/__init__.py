"""Space-time diagrams: as coordinates, as SVG and as PNG."""
