from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig, ClippedPGLossFn

__all__ = ["ClippedPGLossConfig", "ClippedPGLossFn"]
