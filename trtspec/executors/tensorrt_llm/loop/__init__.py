"""Our own draft-and-verify loop over a plain compiled engine that tells the best logits of every position."""
