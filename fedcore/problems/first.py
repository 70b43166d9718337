"""The first convolution with the pooling behind it: on the way back a few images at a time, so that all between stays in the core's cache.

Where images have few channels the library takes twice as long as a matrix product for the gradient of the weights, and what
pooling hands back is four times as large as what it was given.
"""

from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from fedcore.problems.layers import Backward, Convolution, Named, pixels_of, pool

CACHED_BYTES = 3 << 19
"""What a step of the way back may take: most of what a core keeps to itself."""


@dataclass(frozen=True, slots=True)
class FirstStage:
    """A convolution of samples, nn.MaxPool2d(2) and nn.ReLU, on images with channels last."""

    convolution: Convolution

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        images, _ = self.convolution(inputs, parameters, gradients)
        channels, *size = images.shape[1:]
        pooled, places = pool(images)

        def back(error: Tensor) -> Tensor:
            from fedcore.problems import pooling

            errors, (down, across) = pixels_of(error), self.convolution.padding
            planes = nn.functional.pad(inputs.contiguous(), (across, across, down, down)).numpy()
            weight = gradients[self.convolution.prefix + "weight"]
            seen = weight[0].numel()
            together = max(1, CACHED_BYTES // (error.element_size() * prod(size) * (seen + channels)))
            spread = error.new_empty(together, *size, channels)
            # The last row is what the bias sees.
            patches = error.new_ones(seen + 1, together, *size)
            laid = spread.numpy(), patches[:-1].view(*weight.shape[1:], together, *size).numpy()
            left, right = patches.flatten(1), spread.flatten(0, 2)
            gradient = error.new_zeros(seen + 1, channels)
            for start in range(0, len(errors), together):
                pooling.lay_out(errors, places, planes, start, *laid)
                gradient.addmm_(left, right)
            weight.copy_(gradient[:-1].mT.reshape(weight.shape))
            if self.convolution.biased:
                gradients[self.convolution.prefix + "bias"].copy_(gradient[-1])
            return error

        return pooled, back
