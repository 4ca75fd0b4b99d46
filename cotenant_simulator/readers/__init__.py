"""Files to traces: every format ends in the same records, or in an error with the line."""
