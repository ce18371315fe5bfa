"""Speculative decoding on tokens and logits: no gRPC, no text, no engine format.

The words, used alike everywhere:

target      the model whose text is served
draft       tokens proposed for one pass; a *node* is one of them, in a tree
root        the last committed token; its target output is the first bonus candidate
proposer    makes drafts
accepted    drafted tokens that passed verification, bonus not counted
bonus       the target's own token that ends a step
emitted     tokens of a pass that the client receives
committed   in the KV cache for good
decode pass one target pass for one sequence, with any number of nodes
spec step   a decode pass with at least one node

A pass is a straight line: plan -> propose -> forward -> choose -> walk_tree -> commit -> publish.
"""
