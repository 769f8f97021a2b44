"""Click logs: readers of each format, from lines to rows of 13 numbers and 26 table rows."""
