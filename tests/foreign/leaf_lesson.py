'''
Lesson 4 - From a leaf to twenty small pictures
-----------------------------------------------

Until now our network looked at each pixel alone. A vein of a leaf is longer than a pixel, so
today it gets to see squares of pixels. What we build is short:

1. eight filters of 5 x 5 on the colour picture, then ``tanh``;
2. in every square of 2 x 2 the largest value is kept;
3. twenty filters of 3 x 3, then ``tanh`` again;
4. in every square of 2 x 2 the mean is kept.

Before you run it: write down the size of the picture after each step. There is a table at the
end of the lesson to compare with.
'''
import torch
import torch.nn as nn

# try 41 for the side: which row of pixels is never looked at?
leaves = 300
side = 40


class Model(nn.Module):
    def __init__(self):
        super(Model, self).__init__()      # forget this line once, and read what Python says
        self.veins = nn.Conv2d(3, 8, 5)
        self.largest = nn.MaxPool2d(2)
        self.shapes = nn.Conv2d(8, 20, 3)
        self.mean = nn.AvgPool2d(2)

    def forward(self, leaf):
        # steps 1 and 2
        leaf = self.largest(torch.tanh(self.veins(leaf)))
        # steps 3 and 4
        leaf = self.mean(torch.tanh(self.shapes(leaf)))
        return leaf


def get_inputs():
    return [torch.rand(leaves, 3, side, side)]


def get_init_inputs():
    return []  # all the sizes are written above
