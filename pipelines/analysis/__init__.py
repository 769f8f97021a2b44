"""What `dpfest bench` measures but does not time (corrections, bias, contribution maps), and `dpfest check` and `budget --plan`."""
