"""One engine each behind `opened(job)`. A module may import what its engine's environment has, and of this benchmark
only `jobs`."""
