"""What `python -m builders.train` does, stage by stage: conversations, answers, features, training, evaluation."""
