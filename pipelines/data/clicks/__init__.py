"""Click logs: one reader per format, from lines to numeric features and table rows."""
