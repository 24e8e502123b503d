// The parts of the form that are lists: LoRAs, ControlNets, IP-Adapters, pictures to look at. Each has a node and the
// field that refusals name.
export const makeUnits = () => [];
