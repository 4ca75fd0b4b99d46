"""What is told about runs: JSON, tables, a page for the browser."""
