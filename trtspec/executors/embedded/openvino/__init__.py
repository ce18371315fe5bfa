"""The compiled runner for CPUs: the decoder as an OpenVINO graph over a paged cache."""
