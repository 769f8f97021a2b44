"""From the command line to typed settings: composing, checking, naming the nearest right key."""
