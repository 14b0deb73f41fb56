"""The audit: which samples look mislabelled, and which clients look bad.

collect        after a client has trained: one forward pass of the received and of its own model over its samples
scores         from the collected sums to one suspicion score per sample
samples        the audit of a run: suspects, estimated shares of wrong labels, confusions of labels
clients        the clients that look bad as a whole
labels         the same score for the labels of any data set, without a federation
"""
