"""One site of a federation.

site    trains and evaluates on its own data
states  what it keeps between rounds, such as its personal model
report  accuracy by class of the shared and the personal model
"""
