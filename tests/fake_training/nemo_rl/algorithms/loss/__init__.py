from nemo_rl.algorithms.loss.loss_functions import (
    ClippedPGLossConfig,
    ClippedPGLossFn,
    CrossTokenizerDistillationLossFn,
    DistillationLossFn,
    DPOLossFn,
    MseValueLossFn,
    NLLLossFn,
    PreferenceLossFn,
)

__all__ = [
    "ClippedPGLossConfig",
    "ClippedPGLossFn",
    "CrossTokenizerDistillationLossFn",
    "DPOLossFn",
    "DistillationLossFn",
    "MseValueLossFn",
    "NLLLossFn",
    "PreferenceLossFn",
]
