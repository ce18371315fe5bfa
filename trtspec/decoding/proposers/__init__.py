"""One file a method; `trtspec.decoding.proposer.PROPOSERS` names them."""
