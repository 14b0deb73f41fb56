"""The paper's models, and any other `nn.Module`: built, checked, as vectors of parameters, and in files."""

from fedtilt.models.exported import build_exported, exported_shape, in_target_unit, load, recipe
from fedtilt.models.networks import (
    MODELS,
    ModelSource,
    build,
    build_without_storage,
    check,
    cnn,
    from_lightning,
    logistic,
    mlp,
    random_output,
)
from fedtilt.models.parameters import (
    copy_with_parameters,
    functional_logits,
    logits,
    output_logits,
    parameters_to_vector,
    tied_last_layer,
    trained_parameters,
    vector_to_parameters,
    with_weights,
)
