"""Files, locks, checksums, processes, signals, progress, memory and the Hugging Face hub."""
