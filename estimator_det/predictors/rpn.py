"""Head of a region proposal network, which predicts objectness and a box for each anchor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, NamedTuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.hyperparams import ArgScope
from estimator_det.predictors.base import HeadOptions, Prediction
from estimator_det.predictors.ssd import ConvolutionalBoxHead

SCOPE = "FirstStageBoxPredictor"
CONVOLUTION = "Conv"  # outside the head's scope, as in the reference
OBJECTNESS_COLUMNS = 2  # background, object
BOX_CODE_SIZE = 4  # numbers that encode a box


class ProposalOutput(NamedTuple):
    """Output of a proposal head for a feature map with A anchors."""

    features: tf.Tensor  # float [B, h, w, depth], output of the convolution before the head
    prediction: Prediction  # codes [B, A, 4], objectness logits [B, A, 2]


@dataclass(frozen=True)
class ProposalHead:
    """A convolution, then 1x1 layers for codes and objectness (https://arxiv.org/abs/1506.01497)."""

    conv_scope: ArgScope  # argument scope of all layers
    depth: int = 512  # channels of the convolution
    kernel_size: int = 3  # height and width of its kernel
    atrous_rate: int = 1  # dilation of its kernel

    def predict(self, features: tf.Tensor, num_per_location: List[int]) -> ProposalOutput:
        """Predicts from a feature map [B, h, w, C] with these numbers of anchors per cell."""
        # AUTO_REUSE, so that further calls share the variables.
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            with self.conv_scope():
                net = slim.conv2d(
                    features,
                    self.depth,
                    self.kernel_size,
                    rate=self.atrous_rate,
                    # Like in the reference, regardless of the hyperparameters.
                    activation_fn=tf.nn.relu6,
                    scope=CONVOLUTION,
                )
            with tf1.variable_scope(SCOPE):
                head = ConvolutionalBoxHead(self._options(), self.conv_scope)
                return ProposalOutput(net, head.predict([net], num_per_location))

    def _options(self) -> HeadOptions:
        return HeadOptions(
            num_class_slots=OBJECTNESS_COLUMNS,
            box_code_size=BOX_CODE_SIZE,
            kernel_size=1,
            use_depthwise=False,
            class_bias_init=0.0,
            dropout_keep_probability=1.0,
            is_training=False,
            sigmoid_scores=False,
            clip_range=None,
        )
