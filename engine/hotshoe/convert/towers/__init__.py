"""Convert the encoders of pictures and sounds. Most modules have the name of the one in ``hotshoe.towers``.

The text models of the same checkpoints are converted by the modules of ``hotshoe.convert``, which modules here may
import, and not the reverse. Converters are found by entry point, in any installed distribution:

    [project.entry-points."hotshoe.tower_converters"]
    MineForConditionalGeneration = "my_package.convert_tower:describe"    # architectures[0] of config.json
"""
