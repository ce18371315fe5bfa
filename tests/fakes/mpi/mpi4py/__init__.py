"""An MPI for tests of a single process, whose other ranks are played by nobody: whatever waits for them goes on."""
