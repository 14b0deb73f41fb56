"""The federation of the deployment tests: two sites of unequal size, a method with two local jobs."""

SPEC = """
name = "parity"
[data]
name = "toy-2"
[clients]
count = 2
partition = "dirichlet"
alpha = 2.0
[model]
name = "mlp"
hidden = [8]
[train]
rounds = 2
participation = 1.0
epochs = 2
lr = 0.1
eval_every = 2
[[methods]]
preset = "fedtilt"
tau = 2.0
lam = -1.0
mu = 0.1
"""
