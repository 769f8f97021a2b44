"""Learning tasks, clicks and texts: models, losses, metrics and optimisers."""
