"""Reports of runs: JSON, tables, a page for the browser."""
