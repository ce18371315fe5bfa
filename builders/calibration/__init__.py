"""What a build learns from given text: a tree for a drafter's heads, and which tokens a drafter can draft."""
