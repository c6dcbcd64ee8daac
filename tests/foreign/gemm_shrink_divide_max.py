import torch
import torch.nn as nn

class Model(nn.Module):
    """
    Model that performs an affine map, subtracts a learned threshold, applies soft shrinkage, divides
    by a constant and takes the largest entry of each row.
    """
    def __init__(self, in_features, out_features, lambd, divisor):
        super(Model, self).__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.threshold = nn.Parameter(torch.randn(out_features) * 0.02)
        self.lambd = lambd
        self.divisor = divisor

    def forward(self, x):
        """
        Args:
            x (torch.Tensor): Input tensor of shape (batch_size, in_features).
        Returns:
            torch.Tensor: Output tensor of shape (batch_size, 1).
        """
        x = self.gemm(x)
        x = x - self.threshold
        x = torch.nn.functional.softshrink(x, self.lambd)
        x = x / self.divisor
        x = torch.max(x, dim=1, keepdim=True).values
        return x

batch_size = 1024
in_features  = 8192
out_features = 8192
lambd = 0.1
divisor = 1.7

def get_inputs():
    return [torch.rand(batch_size, in_features)]

def get_init_inputs():
    return [in_features, out_features, lambd, divisor]
