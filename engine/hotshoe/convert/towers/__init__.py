"""Convert the encoders of pictures and sounds. A module has the name of the one in ``hotshoe.towers`` with the encoder.

The text models of the same checkpoints are converted by the modules of ``hotshoe.convert``. Converters are found by
entry point, in any installed distribution:

    [project.entry-points."hotshoe.tower_converters"]
    MineForConditionalGeneration = "my_package.convert_tower:describe"    # architectures[0] of config.json
"""
