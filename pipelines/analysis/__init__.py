"""What `dpfest bench` measures but does not time; `dpfest check` and `dpfest budget --plan`."""
