"""What is learnt: models, losses and metrics of clicks and of texts, and their optimisers."""
