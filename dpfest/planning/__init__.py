"""Plans and ledgers: from a target epsilon to noise, samplers of batches, and what was spent."""
