"""Image classification: any backbone, frozen or trained end to end, and the pools of the paper's tables on its maps."""
