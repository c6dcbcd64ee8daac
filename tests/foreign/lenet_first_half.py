'''
Tutorial, part 2: our first convolutional layer
===============================================

We take grey images of 28 by 28 pixels, exactly like the handwritten digits you have seen in
part 1, and run them through

* a convolution with 6 filters (``nn.Conv2d``),
* a sigmoid, as in the original paper from 1998,
* average pooling (``nn.AvgPool2d``), which halves the width and the height,
* another convolution with 16 filters, a sigmoid, and another pooling.

Do not worry about the numbers yet! In part 3 we will see why 16 * 5 * 5 comes out.
'''
import torch
import torch.nn as nn

# You can change these. What happens if batch_size is 1?
batch_size = 256
image_size = 28


class Model(nn.Module):
    def __init__(self):
        # always call the constructor of the parent class first
        super(Model, self).__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=5, padding=2)
        self.pool = nn.AvgPool2d(kernel_size=2, stride=2)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)

    def forward(self, x):
        # x has shape (batch_size, 1, 28, 28)
        x = torch.sigmoid(self.conv1(x))
        x = self.pool(x)
        # x has shape (batch_size, 6, 14, 14)
        x = torch.sigmoid(self.conv2(x))
        x = self.pool(x)
        # x has shape (batch_size, 16, 5, 5)
        return x


def get_inputs():
    return [torch.rand(batch_size, 1, image_size, image_size)]


def get_init_inputs():
    return []  # nothing to pass
