"""What examples do: which rows they touch, and their clipped gradients' sum; checks that they do not mix."""
