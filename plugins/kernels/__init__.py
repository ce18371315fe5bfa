"""The kernels, in Triton. Importing one of these modules imports Triton; `plugins.specs` says what they take."""
