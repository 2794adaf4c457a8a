"""What ``leasekeeper doctor`` examines: `probe` asks, `facts` is what came back, `findings` judges, `versions` knows old etcds.

Judging is pure and reads nothing but the facts, so every finding can be shown without the server that would cause it.
"""
