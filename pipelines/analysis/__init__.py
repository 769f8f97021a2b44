"""What `dpfest bench` measures but does not time: corrections, bias and contribution maps."""
