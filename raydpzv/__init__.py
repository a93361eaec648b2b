"""raydpzv: asynchronous, differentially private, zeroth-order federated learning."""

__version__ = "0.1.0"
