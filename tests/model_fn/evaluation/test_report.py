import pytest

from model_fn.evaluation.report import is_main, print_results
from model_fn.evaluation.score_thresholds import ThresholdRow


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        (
            {
                "DetectionBoxes_Precision/mAP": 0.5,
                "DetectionBoxes_Precision/mAP (small)": 0.25,
                "DetectionBoxes_PerformanceByCategory/mAP/cat": 0.5,
                "DetectionMasks_AP": 0.5,
                "DetectionMasks_AP50": 0.75,
                "PanopticQuality@0.50IOU": 0.25,
                "PrecisionAtRecallBoxes_Precision/mAP@0.5IOU@[0.2,0.8]Recall": 1.0,
                "loss": 2.0,
                "Loss/total_loss": 2.0,
            },
            "DetectionMasks_AP 0.5000 PanopticQuality@0.50IOU 0.2500 loss 2.0000 mAP 0.5000 "
            "mAP@0.5IOU@[0.2,0.8]Recall 1.0000",
        ),
        ({"Keypoints_Precision/mAP ByCategory/big cat": 0.5, "Loss/total_loss": 2.0},
         "keypoints mAP of big cat 0.5000"),
        # Names that several sets have in common are in full.
        ({"DetectionBoxes_Precision/mAP": 0.5, "DetectionMasks_Precision/mAP": -1.0},
         "DetectionBoxes_Precision/mAP 0.5000 DetectionMasks_Precision/mAP without objects"),
    ],
)  # fmt: skip
def test_the_line_of_an_evaluation(capsys, metrics, line):
    print_results("0", {**metrics, "global_step": 7})
    assert capsys.readouterr().err.strip() == f"evaluation '0' at step 7 | {line}"
    assert not is_main("Loss/total_loss") and is_main("DetectionBoxes_Precision/mAP")
    assert is_main("Keypoints_Precision/mAP ByCategory/cat")
    assert not is_main("Keypoints_Recall/AR@1 ByCategory/cat")
    row = ThresholdRow("all classes", 4, 9, threshold=0.25, precision=1.0, recall=0.5, f1=2 / 3)
    print_results("0", {**metrics, "global_step": 7}, row)
    assert capsys.readouterr().err.endswith("| best F1 0.667 at score 0.250\n")
