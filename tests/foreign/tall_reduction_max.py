"""Late-interaction retrieval score (a much reduced one).

Documents are projected, normalised to unit length and compared with ``n_queries`` learned query
vectors. For each document we keep the best query only.
"""
import torch
import torch.nn as nn

n_documents = 131072
embedding_dim = 1024
projected_dim = 512
n_queries = 256


class Model(nn.Module):
    def __init__(self, embedding_dim, projected_dim, n_queries):
        super().__init__()
        self.projection = nn.Linear(embedding_dim, projected_dim)
        self.queries = nn.Parameter(torch.randn(projected_dim, n_queries) / projected_dim**0.5)

    def forward(self, documents):
        p = self.projection(documents)
        p = p / p.norm(dim=1, keepdim=True).clamp_min(1e-6)
        scores = p @ self.queries
        best = scores.max(dim=1).values
        return torch.relu(best + 0.1)


def get_inputs():
    return [torch.randn(n_documents, embedding_dim)]


def get_init_inputs():
    return [embedding_dim, projected_dim, n_queries]
