//! How each row of the instruction table is encoded; `BLESS=1` writes this file from the table's codes.

use super::form::Form;

/// For each row what its VEX codes share and what its EVEX codes do, or the forms with a long and a short immediate.
#[rustfmt::skip]
pub static FORMS: &[[Form; 2]] = &[
    [Form::vex(1, 0, 0x58, 0, b"RVM"), Form::evex(1, 0, 0x58, 0, b"RVM").per(16)], // VAddPs
    [Form::vex(1, 1, 0x58, 0, b"RVM"), Form::evex(1, 1, 0x58, 1, b"RVM").per(16)], // VAddPd
    [Form::vex(1, 0, 0x5c, 0, b"RVM"), Form::evex(1, 0, 0x5c, 0, b"RVM").per(16)], // VSubPs
    [Form::vex(1, 1, 0x5c, 0, b"RVM"), Form::evex(1, 1, 0x5c, 1, b"RVM").per(16)], // VSubPd
    [Form::vex(1, 0, 0x59, 0, b"RVM"), Form::evex(1, 0, 0x59, 0, b"RVM").per(16)], // VMulPs
    [Form::vex(1, 1, 0x59, 0, b"RVM"), Form::evex(1, 1, 0x59, 1, b"RVM").per(16)], // VMulPd
    [Form::vex(1, 0, 0x5e, 0, b"RVM"), Form::evex(1, 0, 0x5e, 0, b"RVM").per(16)], // VDivPs
    [Form::vex(1, 1, 0x5e, 0, b"RVM"), Form::evex(1, 1, 0x5e, 1, b"RVM").per(16)], // VDivPd
    [Form::vex(1, 0, 0x5d, 0, b"RVM"), Form::evex(1, 0, 0x5d, 0, b"RVM").per(16)], // VMinPs
    [Form::vex(1, 1, 0x5d, 0, b"RVM"), Form::evex(1, 1, 0x5d, 1, b"RVM").per(16)], // VMinPd
    [Form::vex(1, 0, 0x5f, 0, b"RVM"), Form::evex(1, 0, 0x5f, 0, b"RVM").per(16)], // VMaxPs
    [Form::vex(1, 1, 0x5f, 0, b"RVM"), Form::evex(1, 1, 0x5f, 1, b"RVM").per(16)], // VMaxPd
    [Form::vex(1, 0, 0x51, 0, b"RM"), Form::evex(1, 0, 0x51, 0, b"RM").per(16)], // VSqrtPs
    [Form::vex(2, 1, 0x98, 0, b"RVM"), Form::evex(2, 1, 0x98, 0, b"RVM").per(16)], // VFmadd132Ps
    [Form::vex(2, 1, 0xa8, 0, b"RVM"), Form::evex(2, 1, 0xa8, 0, b"RVM").per(16)], // VFmadd213Ps
    [Form::vex(2, 1, 0xb8, 0, b"RVM"), Form::evex(2, 1, 0xb8, 0, b"RVM").per(16)], // VFmadd231Ps
    [Form::vex(2, 1, 0x9c, 0, b"RVM"), Form::evex(2, 1, 0x9c, 0, b"RVM").per(16)], // VFnmadd132Ps
    [Form::vex(2, 1, 0xac, 0, b"RVM"), Form::evex(2, 1, 0xac, 0, b"RVM").per(16)], // VFnmadd213Ps
    [Form::vex(2, 1, 0xbc, 0, b"RVM"), Form::evex(2, 1, 0xbc, 0, b"RVM").per(16)], // VFnmadd231Ps
    [Form::vex(2, 1, 0x9a, 0, b"RVM"), Form::evex(2, 1, 0x9a, 0, b"RVM").per(16)], // VFmsub132Ps
    [Form::vex(2, 1, 0xaa, 0, b"RVM"), Form::evex(2, 1, 0xaa, 0, b"RVM").per(16)], // VFmsub213Ps
    [Form::vex(2, 1, 0xba, 0, b"RVM"), Form::evex(2, 1, 0xba, 0, b"RVM").per(16)], // VFmsub231Ps
    [Form::vex(1, 1, 0x51, 0, b"RM"), Form::evex(1, 1, 0x51, 1, b"RM").per(16)], // VSqrtPd
    [Form::vex(2, 1, 0x98, 1, b"RVM"), Form::evex(2, 1, 0x98, 1, b"RVM").per(16)], // VFmadd132Pd
    [Form::vex(2, 1, 0xa8, 1, b"RVM"), Form::evex(2, 1, 0xa8, 1, b"RVM").per(16)], // VFmadd213Pd
    [Form::vex(2, 1, 0xb8, 1, b"RVM"), Form::evex(2, 1, 0xb8, 1, b"RVM").per(16)], // VFmadd231Pd
    [Form::vex(2, 1, 0x9c, 1, b"RVM"), Form::evex(2, 1, 0x9c, 1, b"RVM").per(16)], // VFnmadd132Pd
    [Form::vex(2, 1, 0xac, 1, b"RVM"), Form::evex(2, 1, 0xac, 1, b"RVM").per(16)], // VFnmadd213Pd
    [Form::vex(2, 1, 0xbc, 1, b"RVM"), Form::evex(2, 1, 0xbc, 1, b"RVM").per(16)], // VFnmadd231Pd
    [Form::vex(2, 1, 0x9a, 1, b"RVM"), Form::evex(2, 1, 0x9a, 1, b"RVM").per(16)], // VFmsub132Pd
    [Form::vex(2, 1, 0xaa, 1, b"RVM"), Form::evex(2, 1, 0xaa, 1, b"RVM").per(16)], // VFmsub213Pd
    [Form::vex(2, 1, 0xba, 1, b"RVM"), Form::evex(2, 1, 0xba, 1, b"RVM").per(16)], // VFmsub231Pd
    [Form::vex(1, 1, 0xdb, 0, b"RVM"), Form::evex(1, 1, 0xdb, 0, b"RVM").per(16)], // VPAnd
    [Form::vex(1, 1, 0xeb, 0, b"RVM"), Form::evex(1, 1, 0xeb, 0, b"RVM").per(16)], // VPOr
    [Form::vex(1, 1, 0xef, 0, b"RVM"), Form::evex(1, 1, 0xef, 0, b"RVM").per(16)], // VPXor
    [Form::vex(1, 1, 0xdf, 0, b"RVM"), Form::evex(1, 1, 0xdf, 0, b"RVM").per(16)], // VPAndN
    [Form::vex(1, 1, 0xdb, 0, b"RVM"), Form::evex(1, 1, 0xdb, 1, b"RVM").per(16)], // VPAndQ
    [Form::vex(1, 1, 0xeb, 0, b"RVM"), Form::evex(1, 1, 0xeb, 1, b"RVM").per(16)], // VPOrQ
    [Form::vex(1, 1, 0xef, 0, b"RVM"), Form::evex(1, 1, 0xef, 1, b"RVM").per(16)], // VPXorQ
    [Form::vex(1, 1, 0xdf, 0, b"RVM"), Form::evex(1, 1, 0xdf, 1, b"RVM").per(16)], // VPAndNQ
    [Form::NONE, Form::evex(3, 1, 0x25, 0, b"RVMI").per(16)], // VPTernLogD
    [Form::NONE, Form::evex(3, 1, 0x25, 1, b"RVMI").per(16)], // VPTernLogQ
    [Form::vex(1, 1, 0xfc, 0, b"RVM"), Form::evex(1, 1, 0xfc, 0, b"RVM").per(16)], // VPAddB
    [Form::vex(1, 1, 0xf8, 0, b"RVM"), Form::evex(1, 1, 0xf8, 0, b"RVM").per(16)], // VPSubB
    [Form::vex(1, 1, 0xfd, 0, b"RVM"), Form::evex(1, 1, 0xfd, 0, b"RVM").per(16)], // VPAddW
    [Form::vex(1, 1, 0xf9, 0, b"RVM"), Form::evex(1, 1, 0xf9, 0, b"RVM").per(16)], // VPSubW
    [Form::vex(1, 1, 0xfe, 0, b"RVM"), Form::evex(1, 1, 0xfe, 0, b"RVM").per(16)], // VPAddD
    [Form::vex(1, 1, 0xfa, 0, b"RVM"), Form::evex(1, 1, 0xfa, 0, b"RVM").per(16)], // VPSubD
    [Form::vex(1, 1, 0xd4, 0, b"RVM"), Form::evex(1, 1, 0xd4, 1, b"RVM").per(16)], // VPAddQ
    [Form::vex(1, 1, 0xfb, 0, b"RVM"), Form::evex(1, 1, 0xfb, 1, b"RVM").per(16)], // VPSubQ
    [Form::vex(2, 1, 0x40, 0, b"RVM"), Form::evex(2, 1, 0x40, 0, b"RVM").per(16)], // VPMulLD
    [Form::NONE, Form::evex(2, 1, 0x40, 1, b"RVM").per(16)], // VPMulLQ
    [Form::vex(1, 1, 0xf4, 0, b"RVM"), Form::evex(1, 1, 0xf4, 1, b"RVM").per(16)], // VPMulUDQ
    [Form::vex(2, 1, 0x28, 0, b"RVM"), Form::evex(2, 1, 0x28, 1, b"RVM").per(16)], // VPMulDQ
    [Form::vex(2, 1, 0x39, 0, b"RVM"), Form::evex(2, 1, 0x39, 0, b"RVM").per(16)], // VPMinSD
    [Form::vex(2, 1, 0x3d, 0, b"RVM"), Form::evex(2, 1, 0x3d, 0, b"RVM").per(16)], // VPMaxSD
    [Form::vex(2, 1, 0x3b, 0, b"RVM"), Form::evex(2, 1, 0x3b, 0, b"RVM").per(16)], // VPMinUD
    [Form::vex(2, 1, 0x3f, 0, b"RVM"), Form::evex(2, 1, 0x3f, 0, b"RVM").per(16)], // VPMaxUD
    [Form::NONE, Form::evex(2, 1, 0x39, 1, b"RVM").per(16)], // VPMinSQ
    [Form::NONE, Form::evex(2, 1, 0x3d, 1, b"RVM").per(16)], // VPMaxSQ
    [Form::NONE, Form::evex(2, 1, 0x3b, 1, b"RVM").per(16)], // VPMinUQ
    [Form::NONE, Form::evex(2, 1, 0x3f, 1, b"RVM").per(16)], // VPMaxUQ
    [Form::vex(2, 1, 0x1e, 0, b"RM"), Form::evex(2, 1, 0x1e, 0, b"RM").per(16)], // VPAbsD
    [Form::NONE, Form::evex(2, 1, 0x1f, 1, b"RM").per(16)], // VPAbsQ
    [Form::vex(1, 1, 0x72, 0, b"VMI").extra(0x06), Form::evex(1, 1, 0x72, 0, b"VMI").extra(0x06).per(16)], // VPSllDI
    [Form::vex(2, 1, 0x47, 0, b"RVM"), Form::evex(2, 1, 0x47, 0, b"RVM").per(16)], // VPSllVD
    [Form::vex(1, 1, 0x73, 0, b"VMI").extra(0x06), Form::evex(1, 1, 0x73, 1, b"VMI").extra(0x06).per(16)], // VPSllQI
    [Form::vex(2, 1, 0x47, 1, b"RVM"), Form::evex(2, 1, 0x47, 1, b"RVM").per(16)], // VPSllVQ
    [Form::vex(1, 1, 0x72, 0, b"VMI").extra(0x02), Form::evex(1, 1, 0x72, 0, b"VMI").extra(0x02).per(16)], // VPSrlDI
    [Form::vex(2, 1, 0x45, 0, b"RVM"), Form::evex(2, 1, 0x45, 0, b"RVM").per(16)], // VPSrlVD
    [Form::vex(1, 1, 0x73, 0, b"VMI").extra(0x02), Form::evex(1, 1, 0x73, 1, b"VMI").extra(0x02).per(16)], // VPSrlQI
    [Form::vex(2, 1, 0x45, 1, b"RVM"), Form::evex(2, 1, 0x45, 1, b"RVM").per(16)], // VPSrlVQ
    [Form::vex(1, 1, 0x72, 0, b"VMI").extra(0x04), Form::evex(1, 1, 0x72, 0, b"VMI").extra(0x04).per(16)], // VPSraDI
    [Form::vex(2, 1, 0x46, 0, b"RVM"), Form::evex(2, 1, 0x46, 0, b"RVM").per(16)], // VPSraVD
    [Form::NONE, Form::evex(1, 1, 0x72, 1, b"VMI").extra(0x04).per(16)], // VPSraQI
    [Form::NONE, Form::evex(2, 1, 0x46, 1, b"RVM").per(16)], // VPSraVQ
    [Form::vex(1, 0, 0xc2, 0, b"RVMI"), Form::NONE], // VCmpPsV
    [Form::NONE, Form::evex(3, 1, 0x66, 0, b"RMI").per(16)], // VFpClassPs
    [Form::NONE, Form::evex(1, 0, 0xc2, 0, b"RVMI").per(16)], // VCmpPsK
    [Form::vex(1, 1, 0xc2, 0, b"RVMI"), Form::NONE], // VCmpPdV
    [Form::NONE, Form::evex(1, 1, 0xc2, 1, b"RVMI").per(16)], // VCmpPdK
    [Form::NONE, Form::evex(3, 1, 0x1f, 0, b"RVMI").per(16)], // VPCmpDK
    [Form::NONE, Form::evex(3, 1, 0x1e, 0, b"RVMI").per(16)], // VPCmpUDK
    [Form::NONE, Form::evex(3, 1, 0x1f, 1, b"RVMI").per(16)], // VPCmpQK
    [Form::NONE, Form::evex(3, 1, 0x1e, 1, b"RVMI").per(16)], // VPCmpUQK
    [Form::NONE, Form::evex(3, 1, 0x3f, 0, b"RVMI").per(16)], // VPCmpBK
    [Form::NONE, Form::evex(3, 1, 0x3e, 0, b"RVMI").per(16)], // VPCmpUBK
    [Form::vex(1, 1, 0x74, 0, b"RVM"), Form::NONE], // VPCmpEqBV
    [Form::vex(1, 1, 0x76, 0, b"RVM"), Form::NONE], // VPCmpEqDV
    [Form::vex(2, 1, 0x29, 0, b"RVM"), Form::NONE], // VPCmpEqQV
    [Form::vex(1, 1, 0x64, 0, b"RVM"), Form::NONE], // VPCmpGtBV
    [Form::vex(1, 1, 0x66, 0, b"RVM"), Form::NONE], // VPCmpGtDV
    [Form::vex(2, 1, 0x37, 0, b"RVM"), Form::NONE], // VPCmpGtQV
    [Form::NONE, Form::evex(2, 1, 0x26, 0, b"RVM").per(16)], // VPTestMB
    [Form::NONE, Form::evex(2, 1, 0x27, 0, b"RVM").per(16)], // VPTestMD
    [Form::NONE, Form::evex(2, 1, 0x27, 1, b"RVM").per(16)], // VPTestMQ
    [Form::NONE, Form::evex(2, 2, 0x28, 0, b"RM")], // VPMovM2B
    [Form::NONE, Form::evex(2, 2, 0x38, 0, b"RM")], // VPMovM2D
    [Form::NONE, Form::evex(2, 2, 0x38, 1, b"RM")], // VPMovM2Q
    [Form::NONE, Form::evex(2, 2, 0x39, 0, b"RM")], // VPMovD2M
    [Form::NONE, Form::evex(2, 2, 0x29, 0, b"RM")], // VPMovB2M
    [Form::NONE, Form::evex(2, 1, 0x2c, 0, b"RVM").per(16)], // VScaleFPs
    [Form::NONE, Form::evex(3, 1, 0x50, 0, b"RVMI").per(16)], // VRangePs
    [Form::NONE, Form::evex(3, 1, 0x50, 1, b"RVMI").per(16)], // VRangePd
    [Form::NONE, Form::evex(2, 1, 0x65, 0, b"RVM").per(16)], // VBlendMPs
    [Form::NONE, Form::evex(2, 1, 0x65, 1, b"RVM").per(16)], // VBlendMPd
    [Form::vex(3, 1, 0x4a, 0, b"RVML"), Form::NONE], // VBlendVPs
    [Form::vex(3, 1, 0x4b, 0, b"RVML"), Form::NONE], // VBlendVPd
    [Form::vex(3, 1, 0x4c, 0, b"RVML"), Form::NONE], // VPBlendVB
    [Form::vex(1, 0, 0x10, 0, b"RM"), Form::evex(1, 0, 0x10, 0, b"RM").per(16)], // VMovUps
    [Form::vex(1, 0, 0x11, 0, b"MR"), Form::evex(1, 0, 0x11, 0, b"MR").per(16)], // VMovUpsS
    [Form::vex(1, 1, 0x10, 0, b"RM"), Form::evex(1, 1, 0x10, 1, b"RM").per(16)], // VMovUpd
    [Form::vex(1, 1, 0x11, 0, b"MR"), Form::evex(1, 1, 0x11, 1, b"MR").per(16)], // VMovUpdS
    [Form::vex(1, 2, 0x6f, 0, b"RM"), Form::evex(1, 2, 0x6f, 0, b"RM").per(16)], // VMovDqu32
    [Form::vex(1, 2, 0x7f, 0, b"MR"), Form::evex(1, 2, 0x7f, 0, b"MR").per(16)], // VMovDqu32S
    [Form::vex(1, 2, 0x6f, 0, b"RM"), Form::evex(1, 2, 0x6f, 1, b"RM").per(16)], // VMovDqu64
    [Form::vex(1, 2, 0x7f, 0, b"MR"), Form::evex(1, 2, 0x7f, 1, b"MR").per(16)], // VMovDqu64S
    [Form::NONE, Form::evex(1, 3, 0x6f, 0, b"RM").per(16)], // VMovDqu8
    [Form::NONE, Form::evex(1, 3, 0x7f, 0, b"MR").per(16)], // VMovDqu8S
    [Form::NONE, Form::evex(1, 3, 0x6f, 1, b"RM").per(16)], // VMovDqu16
    [Form::NONE, Form::evex(1, 3, 0x7f, 1, b"MR").per(16)], // VMovDqu16S
    [Form::vex(1, 0, 0x2b, 0, b"MR"), Form::evex(1, 0, 0x2b, 0, b"MR").per(16)], // VMovNtPs
    [Form::vex(2, 1, 0x2c, 0, b"RVM"), Form::NONE], // VMaskMovPs
    [Form::vex(2, 1, 0x2e, 0, b"MVR"), Form::NONE], // VMaskMovPsS
    [Form::vex(2, 1, 0x2d, 0, b"RVM"), Form::NONE], // VMaskMovPd
    [Form::vex(2, 1, 0x2f, 0, b"MVR"), Form::NONE], // VMaskMovPdS
    [Form::vex(2, 1, 0x18, 0, b"RM"), Form::evex(2, 1, 0x18, 0, b"RM").by(4)], // VBroadcastSs
    [Form::vex(2, 1, 0x18, 0, b"RM"), Form::evex(2, 1, 0x18, 0, b"RM").by(4)], // VBroadcastSsM
    [Form::vex(2, 1, 0x19, 0, b"RM"), Form::evex(2, 1, 0x19, 1, b"RM").by(8)], // VBroadcastSd
    [Form::vex(2, 1, 0x19, 0, b"RM"), Form::evex(2, 1, 0x19, 1, b"RM").by(8)], // VBroadcastSdM
    [Form::vex(2, 1, 0x78, 0, b"RM"), Form::evex(2, 1, 0x78, 0, b"RM")], // VPBroadcastB
    [Form::vex(2, 1, 0x79, 0, b"RM"), Form::evex(2, 1, 0x79, 0, b"RM").by(2)], // VPBroadcastW
    [Form::vex(2, 1, 0x58, 0, b"RM"), Form::evex(2, 1, 0x58, 0, b"RM").by(4)], // VPBroadcastD
    [Form::vex(2, 1, 0x59, 0, b"RM"), Form::evex(2, 1, 0x59, 1, b"RM").by(8)], // VPBroadcastQ
    [Form::NONE, Form::evex(2, 1, 0x7a, 0, b"RM")], // VPBroadcastBG
    [Form::NONE, Form::evex(2, 1, 0x7b, 0, b"RM")], // VPBroadcastWG
    [Form::NONE, Form::evex(2, 1, 0x7c, 0, b"RM")], // VPBroadcastDG
    [Form::NONE, Form::evex(2, 1, 0x7c, 1, b"RM")], // VPBroadcastQG
    [Form::vex(2, 1, 0x92, 0, b"RMV"), Form::NONE], // VGatherDPsV
    [Form::NONE, Form::evex(2, 1, 0x92, 0, b"RM").by(4)], // VGatherDPsK
    [Form::vex(2, 1, 0x93, 0, b"RMV"), Form::NONE], // VGatherQPsV
    [Form::NONE, Form::evex(2, 1, 0x93, 0, b"RM").by(4)], // VGatherQPsK
    [Form::vex(2, 1, 0x92, 1, b"RMV"), Form::NONE], // VGatherDPdV
    [Form::NONE, Form::evex(2, 1, 0x92, 1, b"RM").by(8)], // VGatherDPdK
    [Form::vex(2, 1, 0x93, 1, b"RMV"), Form::NONE], // VGatherQPdV
    [Form::NONE, Form::evex(2, 1, 0x93, 1, b"RM").by(8)], // VGatherQPdK
    [Form::vex(2, 1, 0x90, 0, b"RMV"), Form::NONE], // VPGatherDDV
    [Form::NONE, Form::evex(2, 1, 0x90, 0, b"RM").by(4)], // VPGatherDDK
    [Form::vex(2, 1, 0x91, 0, b"RMV"), Form::NONE], // VPGatherQDV
    [Form::NONE, Form::evex(2, 1, 0x91, 0, b"RM").by(4)], // VPGatherQDK
    [Form::vex(2, 1, 0x90, 1, b"RMV"), Form::NONE], // VPGatherDQV
    [Form::NONE, Form::evex(2, 1, 0x90, 1, b"RM").by(8)], // VPGatherDQK
    [Form::vex(2, 1, 0x91, 1, b"RMV"), Form::NONE], // VPGatherQQV
    [Form::NONE, Form::evex(2, 1, 0x91, 1, b"RM").by(8)], // VPGatherQQK
    [Form::NONE, Form::evex(2, 1, 0xa0, 0, b"MR").by(4)], // VPScatterDD
    [Form::NONE, Form::evex(2, 1, 0xa1, 0, b"MR").by(4)], // VPScatterQD
    [Form::NONE, Form::evex(2, 1, 0xa0, 1, b"MR").by(8)], // VPScatterDQ
    [Form::NONE, Form::evex(2, 1, 0xa1, 1, b"MR").by(8)], // VPScatterQQ
    [Form::vex(2, 1, 0x31, 0, b"RM"), Form::evex(2, 1, 0x31, 0, b"RM").per(4)], // VPMovZxBD
    [Form::vex(2, 1, 0x33, 0, b"RM"), Form::evex(2, 1, 0x33, 0, b"RM").per(8)], // VPMovZxWD
    [Form::vex(2, 1, 0x32, 0, b"RM"), Form::evex(2, 1, 0x32, 0, b"RM").per(2)], // VPMovZxBQ
    [Form::vex(2, 1, 0x34, 0, b"RM"), Form::evex(2, 1, 0x34, 0, b"RM").per(4)], // VPMovZxWQ
    [Form::vex(2, 1, 0x35, 0, b"RM"), Form::evex(2, 1, 0x35, 0, b"RM").per(8)], // VPMovZxDQ
    [Form::vex(2, 1, 0x30, 0, b"RM"), Form::evex(2, 1, 0x30, 0, b"RM").per(8)], // VPMovZxBW
    [Form::vex(2, 1, 0x21, 0, b"RM"), Form::evex(2, 1, 0x21, 0, b"RM").per(4)], // VPMovSxBD
    [Form::vex(2, 1, 0x23, 0, b"RM"), Form::evex(2, 1, 0x23, 0, b"RM").per(8)], // VPMovSxWD
    [Form::vex(2, 1, 0x22, 0, b"RM"), Form::evex(2, 1, 0x22, 0, b"RM").per(2)], // VPMovSxBQ
    [Form::vex(2, 1, 0x24, 0, b"RM"), Form::evex(2, 1, 0x24, 0, b"RM").per(4)], // VPMovSxWQ
    [Form::vex(2, 1, 0x25, 0, b"RM"), Form::evex(2, 1, 0x25, 0, b"RM").per(8)], // VPMovSxDQ
    [Form::vex(2, 1, 0x20, 0, b"RM"), Form::evex(2, 1, 0x20, 0, b"RM").per(8)], // VPMovSxBW
    [Form::NONE, Form::evex(2, 2, 0x31, 0, b"MR").per(4)], // VPMovDB
    [Form::NONE, Form::evex(2, 2, 0x33, 0, b"MR").per(8)], // VPMovDW
    [Form::NONE, Form::evex(2, 2, 0x35, 0, b"MR").per(8)], // VPMovQD
    [Form::NONE, Form::evex(2, 2, 0x32, 0, b"MR").per(2)], // VPMovQB
    [Form::NONE, Form::evex(2, 2, 0x34, 0, b"MR").per(4)], // VPMovQW
    [Form::NONE, Form::evex(2, 2, 0x30, 0, b"MR").per(8)], // VPMovWB
    [Form::NONE, Form::evex(2, 2, 0x31, 0, b"MR").per(4)], // VPMovDBS
    [Form::NONE, Form::evex(2, 2, 0x33, 0, b"MR").per(8)], // VPMovDWS
    [Form::NONE, Form::evex(2, 2, 0x35, 0, b"MR").per(8)], // VPMovQDS
    [Form::vex(2, 1, 0x13, 0, b"RM"), Form::evex(2, 1, 0x13, 0, b"RM").per(8)], // VCvtPh2Ps
    [Form::vex(3, 1, 0x1d, 0, b"MRI"), Form::evex(3, 1, 0x1d, 0, b"MRI").per(8)], // VCvtPs2Ph
    [Form::vex(3, 1, 0x1d, 0, b"MRI"), Form::evex(3, 1, 0x1d, 0, b"MRI").per(8)], // VCvtPs2PhS
    [Form::NONE, Form::evex(2, 2, 0x72, 0, b"RM").per(16)], // VCvtNePs2Bf16
    [Form::vex(1, 0, 0x5b, 0, b"RM"), Form::evex(1, 0, 0x5b, 0, b"RM").per(16)], // VCvtDq2Ps
    [Form::vex(1, 2, 0x5b, 0, b"RM"), Form::evex(1, 2, 0x5b, 0, b"RM").per(16)], // VCvttPs2Dq
    [Form::vex(1, 1, 0x5b, 0, b"RM"), Form::evex(1, 1, 0x5b, 0, b"RM").per(16)], // VCvtPs2Dq
    [Form::NONE, Form::evex(1, 3, 0x7a, 0, b"RM").per(16)], // VCvtUdq2Ps
    [Form::NONE, Form::evex(1, 0, 0x78, 0, b"RM").per(16)], // VCvttPs2Udq
    [Form::vex(1, 0, 0x5a, 0, b"RM"), Form::evex(1, 0, 0x5a, 0, b"RM").per(8)], // VCvtPs2Pd
    [Form::vex(1, 1, 0x5a, 0, b"RM"), Form::evex(1, 1, 0x5a, 1, b"RM").per(16)], // VCvtPd2Ps
    [Form::vex(1, 2, 0xe6, 0, b"RM"), Form::evex(1, 2, 0xe6, 0, b"RM").per(8)], // VCvtDq2Pd
    [Form::vex(1, 1, 0xe6, 0, b"RM"), Form::evex(1, 1, 0xe6, 1, b"RM").per(16)], // VCvttPd2Dq
    [Form::NONE, Form::evex(1, 2, 0xe6, 1, b"RM").per(16)], // VCvtQq2Pd
    [Form::NONE, Form::evex(1, 2, 0x7a, 1, b"RM").per(16)], // VCvtUqq2Pd
    [Form::NONE, Form::evex(1, 1, 0x7a, 1, b"RM").per(16)], // VCvttPd2Qq
    [Form::NONE, Form::evex(1, 1, 0x78, 1, b"RM").per(16)], // VCvttPd2Uqq
    [Form::NONE, Form::evex(1, 0, 0x5b, 1, b"RM").per(16)], // VCvtQq2Ps
    [Form::NONE, Form::evex(1, 3, 0x7a, 1, b"RM").per(16)], // VCvtUqq2Ps
    [Form::NONE, Form::evex(1, 1, 0x7a, 0, b"RM").per(8)], // VCvttPs2Qq
    [Form::NONE, Form::evex(1, 1, 0x78, 0, b"RM").per(8)], // VCvttPs2Uqq
    [Form::NONE, Form::evex(1, 2, 0x7a, 0, b"RM").per(8)], // VCvtUdq2Pd
    [Form::NONE, Form::evex(1, 0, 0x78, 1, b"RM").per(16)], // VCvttPd2Udq
    [Form::vex(3, 1, 0x08, 0, b"RMI"), Form::NONE], // VRoundPs
    [Form::NONE, Form::evex(3, 1, 0x08, 0, b"RMI").per(16)], // VRndScalePs
    [Form::NONE, Form::evex(3, 1, 0x56, 0, b"RMI").per(16)], // VReducePs
    [Form::NONE, Form::evex(2, 1, 0x2c, 0, b"RVM").per(16)], // VScalefPs
    [Form::vex(3, 1, 0x09, 0, b"RMI"), Form::NONE], // VRoundPd
    [Form::NONE, Form::evex(3, 1, 0x09, 1, b"RMI").per(16)], // VRndScalePd
    [Form::vex(1, 0, 0xc6, 0, b"RVMI"), Form::evex(1, 0, 0xc6, 0, b"RVMI").per(16)], // VShufPs
    [Form::vex(1, 1, 0xc6, 0, b"RVMI"), Form::evex(1, 1, 0xc6, 1, b"RVMI").per(16)], // VShufPd
    [Form::vex(1, 1, 0x70, 0, b"RMI"), Form::evex(1, 1, 0x70, 0, b"RMI").per(16)], // VPShufD
    [Form::vex(3, 1, 0x04, 0, b"RMI"), Form::evex(3, 1, 0x04, 0, b"RMI").per(16)], // VPermilPs
    [Form::vex(3, 1, 0x05, 0, b"RMI"), Form::evex(3, 1, 0x05, 1, b"RMI").per(16)], // VPermilPd
    [Form::vex(3, 1, 0x00, 1, b"RMI"), Form::evex(3, 1, 0x00, 1, b"RMI").per(16)], // VPermQ
    [Form::vex(2, 1, 0x36, 0, b"RVM"), Form::evex(2, 1, 0x36, 0, b"RVM").per(16)], // VPermD
    [Form::NONE, Form::evex(2, 1, 0x8d, 1, b"RVM").per(16)], // VPermW
    [Form::NONE, Form::evex(2, 1, 0x76, 0, b"RVM").per(16)], // VPermI2D
    [Form::NONE, Form::evex(2, 1, 0x7e, 0, b"RVM").per(16)], // VPermT2D
    [Form::NONE, Form::evex(2, 1, 0x75, 1, b"RVM").per(16)], // VPermI2W
    [Form::vex(2, 1, 0x00, 0, b"RVM"), Form::evex(2, 1, 0x00, 0, b"RVM").per(16)], // VPShufB
    [Form::vex(3, 1, 0x06, 0, b"RVMI"), Form::NONE], // VPerm2F128
    [Form::NONE, Form::evex(3, 1, 0x23, 0, b"RVMI").per(16)], // VShufF32x4
    [Form::NONE, Form::evex(3, 1, 0x43, 0, b"RVMI").per(16)], // VShufI32x4
    [Form::vex(1, 0, 0x14, 0, b"RVM"), Form::evex(1, 0, 0x14, 0, b"RVM").per(16)], // VUnpcklPs
    [Form::vex(1, 0, 0x15, 0, b"RVM"), Form::evex(1, 0, 0x15, 0, b"RVM").per(16)], // VUnpckhPs
    [Form::vex(1, 1, 0x14, 0, b"RVM"), Form::evex(1, 1, 0x14, 1, b"RVM").per(16)], // VUnpcklPd
    [Form::vex(1, 1, 0x15, 0, b"RVM"), Form::evex(1, 1, 0x15, 1, b"RVM").per(16)], // VUnpckhPd
    [Form::vex(1, 1, 0x60, 0, b"RVM"), Form::evex(1, 1, 0x60, 0, b"RVM").per(16)], // VPUnpcklbw
    [Form::vex(1, 1, 0x68, 0, b"RVM"), Form::evex(1, 1, 0x68, 0, b"RVM").per(16)], // VPUnpckhbw
    [Form::vex(1, 1, 0x61, 0, b"RVM"), Form::evex(1, 1, 0x61, 0, b"RVM").per(16)], // VPUnpcklwd
    [Form::vex(1, 1, 0x69, 0, b"RVM"), Form::evex(1, 1, 0x69, 0, b"RVM").per(16)], // VPUnpckhwd
    [Form::vex(1, 1, 0x62, 0, b"RVM"), Form::evex(1, 1, 0x62, 0, b"RVM").per(16)], // VPUnpckldq
    [Form::vex(1, 1, 0x6a, 0, b"RVM"), Form::evex(1, 1, 0x6a, 0, b"RVM").per(16)], // VPUnpckhdq
    [Form::vex(1, 1, 0x6c, 0, b"RVM"), Form::evex(1, 1, 0x6c, 1, b"RVM").per(16)], // VPUnpcklqdq
    [Form::vex(1, 1, 0x6d, 0, b"RVM"), Form::evex(1, 1, 0x6d, 1, b"RVM").per(16)], // VPUnpckhqdq
    [Form::vex(1, 1, 0x6b, 0, b"RVM"), Form::evex(1, 1, 0x6b, 0, b"RVM").per(16)], // VPPackSsDw
    [Form::vex(2, 1, 0x2b, 0, b"RVM"), Form::evex(2, 1, 0x2b, 0, b"RVM").per(16)], // VPPackUsDw
    [Form::vex(1, 1, 0x63, 0, b"RVM"), Form::evex(1, 1, 0x63, 0, b"RVM").per(16)], // VPPackSsWb
    [Form::vex(1, 1, 0x67, 0, b"RVM"), Form::evex(1, 1, 0x67, 0, b"RVM").per(16)], // VPPackUsWb
    [Form::vex(3, 1, 0x19, 0, b"MRI"), Form::evex(3, 1, 0x19, 0, b"MRI").by(16)], // VExtractF128
    [Form::NONE, Form::evex(3, 1, 0x1b, 0, b"MRI").by(32)], // VExtractF32x8
    [Form::vex(3, 1, 0x18, 0, b"RVMI"), Form::evex(3, 1, 0x18, 0, b"RVMI").by(16)], // VInsertF128
    [Form::NONE, Form::evex(3, 1, 0x1a, 0, b"RVMI").by(32)], // VInsertF32x8
    [Form::NONE, Form::evex(2, 1, 0x50, 0, b"RVM").per(16)], // VPDpBusd
    [Form::vex(2, 1, 0x50, 0, b"RVM"), Form::NONE], // VPDpBusdY
    [Form::NONE, Form::evex(2, 2, 0x52, 0, b"RVM").per(16)], // VDpBf16Ps
    [Form::vex(1, 1, 0xf5, 0, b"RVM"), Form::evex(1, 1, 0xf5, 0, b"RVM").per(16)], // VPMaddWd
    [Form::vex(1, 1, 0x6e, 0, b"RM"), Form::evex(1, 1, 0x6e, 0, b"RM").by(4)], // VMovD
    [Form::vex(1, 1, 0x6e, 1, b"RM"), Form::evex(1, 1, 0x6e, 1, b"RM").by(8)], // VMovQ
    [Form::vex(1, 1, 0x7e, 0, b"MR"), Form::evex(1, 1, 0x7e, 0, b"MR").by(4)], // VMovDG
    [Form::vex(1, 1, 0x7e, 1, b"MR"), Form::evex(1, 1, 0x7e, 1, b"MR").by(8)], // VMovQG
    [Form::vex(1, 2, 0x10, 0, b"RM"), Form::evex(1, 2, 0x10, 0, b"RM").by(4)], // VMovSsL
    [Form::vex(1, 2, 0x11, 0, b"MR"), Form::evex(1, 2, 0x11, 0, b"MR").by(4)], // VMovSsS
    [Form::vex(1, 3, 0x10, 0, b"RM"), Form::evex(1, 3, 0x10, 1, b"RM").by(8)], // VMovSdL
    [Form::vex(1, 3, 0x11, 0, b"MR"), Form::evex(1, 3, 0x11, 1, b"MR").by(8)], // VMovSdS
    [Form::vex(1, 0, 0x2e, 0, b"RM"), Form::evex(1, 0, 0x2e, 0, b"RM").by(4)], // VUcomiSs
    [Form::vex(1, 1, 0x2e, 0, b"RM"), Form::evex(1, 1, 0x2e, 1, b"RM").by(8)], // VUcomiSd
    [Form::vex(1, 2, 0x2a, 1, b"RVM"), Form::evex(1, 2, 0x2a, 1, b"RVM").by(8)], // VCvtSi2Ss
    [Form::vex(1, 3, 0x2a, 1, b"RVM"), Form::evex(1, 3, 0x2a, 1, b"RVM").by(8)], // VCvtSi2Sd
    [Form::vex(3, 1, 0x14, 0, b"MRI"), Form::evex(3, 1, 0x14, 0, b"MRI")], // VPExtrB
    [Form::vex(3, 1, 0x15, 0, b"MRI"), Form::evex(3, 1, 0x15, 0, b"MRI").by(2)], // VPExtrW
    [Form::vex(3, 1, 0x16, 0, b"MRI"), Form::evex(3, 1, 0x16, 0, b"MRI").by(4)], // VPExtrD
    [Form::vex(3, 1, 0x16, 1, b"MRI"), Form::evex(3, 1, 0x16, 1, b"MRI").by(8)], // VPExtrQ
    [Form::vex(3, 1, 0x20, 0, b"RVMI"), Form::evex(3, 1, 0x20, 0, b"RVMI")], // VPInsrB
    [Form::vex(1, 1, 0xc4, 0, b"RVMI"), Form::evex(1, 1, 0xc4, 0, b"RVMI").by(2)], // VPInsrW
    [Form::vex(3, 1, 0x22, 0, b"RVMI"), Form::evex(3, 1, 0x22, 0, b"RVMI").by(4)], // VPInsrD
    [Form::vex(3, 1, 0x22, 1, b"RVMI"), Form::evex(3, 1, 0x22, 1, b"RVMI").by(8)], // VPInsrQ
    [Form::vex(1, 0, 0x50, 0, b"RM"), Form::NONE], // VMovMskPs
    [Form::vex(1, 1, 0x50, 0, b"RM"), Form::NONE], // VMovMskPd
    [Form::vex(1, 1, 0xd7, 0, b"RM"), Form::NONE], // VPMovMskB
    [Form::vex(1, 0, 0x90, 0, b"RM").length(0), Form::vex(1, 0, 0x90, 0, b"RM").length(0)], // KMovW
    [Form::vex(1, 0, 0x91, 0, b"MR").length(0), Form::vex(1, 0, 0x91, 0, b"MR").length(0)], // KMovWS
    [Form::vex(1, 0, 0x92, 0, b"RM").length(0), Form::vex(1, 0, 0x92, 0, b"RM").length(0)], // KMovWG
    [Form::vex(1, 0, 0x93, 0, b"RM").length(0), Form::vex(1, 0, 0x93, 0, b"RM").length(0)], // KMovGW
    [Form::vex(1, 0, 0x90, 1, b"RM").length(0), Form::vex(1, 0, 0x90, 1, b"RM").length(0)], // KMovQ
    [Form::vex(1, 0, 0x91, 1, b"MR").length(0), Form::vex(1, 0, 0x91, 1, b"MR").length(0)], // KMovQS
    [Form::vex(1, 3, 0x92, 1, b"RM").length(0), Form::vex(1, 3, 0x92, 1, b"RM").length(0)], // KMovQG
    [Form::vex(1, 3, 0x93, 1, b"RM").length(0), Form::vex(1, 3, 0x93, 1, b"RM").length(0)], // KMovGQ
    [Form::vex(1, 1, 0x90, 1, b"RM").length(0), Form::vex(1, 1, 0x90, 1, b"RM").length(0)], // KMovD
    [Form::vex(1, 1, 0x91, 1, b"MR").length(0), Form::vex(1, 1, 0x91, 1, b"MR").length(0)], // KMovDS
    [Form::vex(1, 3, 0x92, 0, b"RM").length(0), Form::vex(1, 3, 0x92, 0, b"RM").length(0)], // KMovDG
    [Form::vex(1, 3, 0x93, 0, b"RM").length(0), Form::vex(1, 3, 0x93, 0, b"RM").length(0)], // KMovGD
    [Form::vex(1, 1, 0x90, 0, b"RM").length(0), Form::vex(1, 1, 0x90, 0, b"RM").length(0)], // KMovB
    [Form::vex(1, 1, 0x91, 0, b"MR").length(0), Form::vex(1, 1, 0x91, 0, b"MR").length(0)], // KMovBS
    [Form::vex(1, 1, 0x92, 0, b"RM").length(0), Form::vex(1, 1, 0x92, 0, b"RM").length(0)], // KMovBG
    [Form::vex(1, 1, 0x93, 0, b"RM").length(0), Form::vex(1, 1, 0x93, 0, b"RM").length(0)], // KMovGB
    [Form::vex(1, 0, 0x41, 0, b"RVM").length(1), Form::vex(1, 0, 0x41, 0, b"RVM").length(1)], // KAndW
    [Form::vex(1, 0, 0x45, 0, b"RVM").length(1), Form::vex(1, 0, 0x45, 0, b"RVM").length(1)], // KOrW
    [Form::vex(1, 0, 0x47, 0, b"RVM").length(1), Form::vex(1, 0, 0x47, 0, b"RVM").length(1)], // KXorW
    [Form::vex(1, 0, 0x42, 0, b"RVM").length(1), Form::vex(1, 0, 0x42, 0, b"RVM").length(1)], // KAndnW
    [Form::vex(1, 0, 0x46, 0, b"RVM").length(1), Form::vex(1, 0, 0x46, 0, b"RVM").length(1)], // KXnorW
    [Form::vex(1, 0, 0x44, 0, b"RM").length(0), Form::vex(1, 0, 0x44, 0, b"RM").length(0)], // KNotW
    [Form::vex(1, 0, 0x98, 0, b"RM").length(0), Form::vex(1, 0, 0x98, 0, b"RM").length(0)], // KOrTestW
    [Form::vex(1, 1, 0x4b, 0, b"RVM").length(1), Form::vex(1, 1, 0x4b, 0, b"RVM").length(1)], // KUnpckBW
    [Form::vex(3, 1, 0x30, 1, b"RMI").length(0), Form::vex(3, 1, 0x30, 1, b"RMI").length(0)], // KShiftRW
    [Form::legacy(0, 0, 0x8b, 1, b"RM"), Form::legacy(0, 0, 0x8b, 1, b"RM")], // Mov
    [Form::legacy(0, 0, 0x89, 1, b"MR"), Form::legacy(0, 0, 0x89, 1, b"MR")], // MovS
    [Form::legacy(0, 0, 0x8b, 0, b"RM"), Form::legacy(0, 0, 0x8b, 0, b"RM")], // Mov32
    [Form::legacy(0, 0, 0x89, 0, b"MR"), Form::legacy(0, 0, 0x89, 0, b"MR")], // Mov32S
    [Form::legacy(0, 0, 0xc7, 1, b"MI").extra(0x00), Form::NONE], // MovI32
    [Form::legacy(0, 0, 0xb8, 0, b"OI"), Form::legacy(0, 0, 0xb8, 0, b"OI")], // MovU32
    [Form::legacy(0, 0, 0xb8, 1, b"OI"), Form::legacy(0, 0, 0xb8, 1, b"OI")], // MovI64
    [Form::legacy(0, 0, 0x63, 1, b"RM"), Form::legacy(0, 0, 0x63, 1, b"RM")], // MovSxd
    [Form::legacy(1, 0, 0xb6, 0, b"RM"), Form::legacy(1, 0, 0xb6, 0, b"RM")], // MovZxB
    [Form::legacy(1, 0, 0xb7, 0, b"RM"), Form::legacy(1, 0, 0xb7, 0, b"RM")], // MovZxW
    [Form::legacy(1, 0, 0xbe, 1, b"RM"), Form::legacy(1, 0, 0xbe, 1, b"RM")], // MovSxB
    [Form::legacy(1, 0, 0xbf, 1, b"RM"), Form::legacy(1, 0, 0xbf, 1, b"RM")], // MovSxW
    [Form::legacy(0, 0, 0x88, 0, b"MR"), Form::legacy(0, 0, 0x88, 0, b"MR")], // MovBS
    [Form::legacy(0, 1, 0x89, 0, b"MR"), Form::legacy(0, 1, 0x89, 0, b"MR")], // MovWS
    [Form::legacy(0, 0, 0x8d, 1, b"RM"), Form::legacy(0, 0, 0x8d, 1, b"RM")], // Lea
    [Form::legacy(0, 0, 0x03, 1, b"RM"), Form::legacy(0, 0, 0x03, 1, b"RM")], // Add
    [Form::legacy(0, 0, 0x81, 1, b"MI").extra(0x00), Form::legacy(0, 0, 0x83, 1, b"MI").extra(0x00)], // AddI
    [Form::legacy(0, 0, 0x2b, 1, b"RM"), Form::legacy(0, 0, 0x2b, 1, b"RM")], // Sub
    [Form::legacy(0, 0, 0x81, 1, b"MI").extra(0x05), Form::legacy(0, 0, 0x83, 1, b"MI").extra(0x05)], // SubI
    [Form::legacy(0, 0, 0x23, 1, b"RM"), Form::legacy(0, 0, 0x23, 1, b"RM")], // And
    [Form::legacy(0, 0, 0x81, 1, b"MI").extra(0x04), Form::legacy(0, 0, 0x83, 1, b"MI").extra(0x04)], // AndI
    [Form::legacy(0, 0, 0x0b, 1, b"RM"), Form::legacy(0, 0, 0x0b, 1, b"RM")], // Or
    [Form::legacy(0, 0, 0x81, 1, b"MI").extra(0x01), Form::legacy(0, 0, 0x83, 1, b"MI").extra(0x01)], // OrI
    [Form::legacy(0, 0, 0x33, 1, b"RM"), Form::legacy(0, 0, 0x33, 1, b"RM")], // Xor
    [Form::legacy(0, 0, 0x81, 1, b"MI").extra(0x06), Form::legacy(0, 0, 0x83, 1, b"MI").extra(0x06)], // XorI
    [Form::legacy(1, 0, 0xaf, 1, b"RM"), Form::legacy(1, 0, 0xaf, 1, b"RM")], // Imul
    [Form::legacy(0, 0, 0x69, 1, b"RMI"), Form::legacy(0, 0, 0x6b, 1, b"RMI")], // ImulI
    [Form::legacy(0, 0, 0xc1, 1, b"MI").extra(0x04), Form::legacy(0, 0, 0xc1, 1, b"MI").extra(0x04)], // ShlI
    [Form::vex(2, 1, 0xf7, 1, b"RMV").length(0), Form::vex(2, 1, 0xf7, 1, b"RMV").length(0)], // Shlx
    [Form::legacy(0, 0, 0xc1, 1, b"MI").extra(0x05), Form::legacy(0, 0, 0xc1, 1, b"MI").extra(0x05)], // ShrI
    [Form::vex(2, 3, 0xf7, 1, b"RMV").length(0), Form::vex(2, 3, 0xf7, 1, b"RMV").length(0)], // Shrx
    [Form::legacy(0, 0, 0xc1, 1, b"MI").extra(0x07), Form::legacy(0, 0, 0xc1, 1, b"MI").extra(0x07)], // SarI
    [Form::vex(2, 2, 0xf7, 1, b"RMV").length(0), Form::vex(2, 2, 0xf7, 1, b"RMV").length(0)], // Sarx
    [Form::legacy(0, 0, 0xf7, 1, b"M").extra(0x03), Form::legacy(0, 0, 0xf7, 1, b"M").extra(0x03)], // Neg
    [Form::legacy(0, 0, 0xf7, 1, b"M").extra(0x02), Form::legacy(0, 0, 0xf7, 1, b"M").extra(0x02)], // Not
    [Form::legacy(0, 0, 0x3b, 1, b"RM"), Form::legacy(0, 0, 0x3b, 1, b"RM")], // Cmp
    [Form::legacy(0, 0, 0x81, 1, b"MI").extra(0x07), Form::legacy(0, 0, 0x83, 1, b"MI").extra(0x07)], // CmpI
    [Form::legacy(0, 0, 0x85, 1, b"MR"), Form::legacy(0, 0, 0x85, 1, b"MR")], // Test
    [Form::legacy(0, 0, 0xf7, 1, b"MI").extra(0x00), Form::NONE], // TestI
    [Form::legacy(1, 0, 0x44, 1, b"RM"), Form::legacy(1, 0, 0x44, 1, b"RM")], // CmovE
    [Form::legacy(1, 0, 0x45, 1, b"RM"), Form::legacy(1, 0, 0x45, 1, b"RM")], // CmovNe
    [Form::legacy(1, 0, 0x4c, 1, b"RM"), Form::legacy(1, 0, 0x4c, 1, b"RM")], // CmovL
    [Form::legacy(1, 0, 0x4d, 1, b"RM"), Form::legacy(1, 0, 0x4d, 1, b"RM")], // CmovGe
    [Form::legacy(1, 0, 0x4e, 1, b"RM"), Form::legacy(1, 0, 0x4e, 1, b"RM")], // CmovLe
    [Form::legacy(1, 0, 0x4f, 1, b"RM"), Form::legacy(1, 0, 0x4f, 1, b"RM")], // CmovG
    [Form::legacy(1, 0, 0x42, 1, b"RM"), Form::legacy(1, 0, 0x42, 1, b"RM")], // CmovB
    [Form::legacy(1, 0, 0x43, 1, b"RM"), Form::legacy(1, 0, 0x43, 1, b"RM")], // CmovAe
    [Form::legacy(1, 0, 0x46, 1, b"RM"), Form::legacy(1, 0, 0x46, 1, b"RM")], // CmovBe
    [Form::legacy(1, 0, 0x47, 1, b"RM"), Form::legacy(1, 0, 0x47, 1, b"RM")], // CmovA
    [Form::legacy(1, 0, 0x4a, 1, b"RM"), Form::legacy(1, 0, 0x4a, 1, b"RM")], // CmovP
    [Form::legacy(1, 0, 0x4b, 1, b"RM"), Form::legacy(1, 0, 0x4b, 1, b"RM")], // CmovNp
    [Form::legacy(1, 0, 0x94, 0, b"M"), Form::legacy(1, 0, 0x94, 0, b"M")], // SetE
    [Form::legacy(1, 0, 0x95, 0, b"M"), Form::legacy(1, 0, 0x95, 0, b"M")], // SetNe
    [Form::legacy(1, 0, 0x9c, 0, b"M"), Form::legacy(1, 0, 0x9c, 0, b"M")], // SetL
    [Form::legacy(1, 0, 0x9d, 0, b"M"), Form::legacy(1, 0, 0x9d, 0, b"M")], // SetGe
    [Form::legacy(1, 0, 0x9e, 0, b"M"), Form::legacy(1, 0, 0x9e, 0, b"M")], // SetLe
    [Form::legacy(1, 0, 0x9f, 0, b"M"), Form::legacy(1, 0, 0x9f, 0, b"M")], // SetG
    [Form::legacy(1, 0, 0x92, 0, b"M"), Form::legacy(1, 0, 0x92, 0, b"M")], // SetB
    [Form::legacy(1, 0, 0x93, 0, b"M"), Form::legacy(1, 0, 0x93, 0, b"M")], // SetAe
    [Form::legacy(1, 0, 0x96, 0, b"M"), Form::legacy(1, 0, 0x96, 0, b"M")], // SetBe
    [Form::legacy(1, 0, 0x97, 0, b"M"), Form::legacy(1, 0, 0x97, 0, b"M")], // SetA
    [Form::legacy(1, 0, 0x9a, 0, b"M"), Form::legacy(1, 0, 0x9a, 0, b"M")], // SetP
    [Form::legacy(1, 0, 0x9b, 0, b"M"), Form::legacy(1, 0, 0x9b, 0, b"M")], // SetNp
    [Form::legacy(1, 0, 0xb6, 0, b"RM"), Form::legacy(1, 0, 0xb6, 0, b"RM")], // MovZxBG
    [Form::legacy(0, 0, 0x99, 1, b""), Form::legacy(0, 0, 0x99, 1, b"")], // Cqo
    [Form::legacy(0, 0, 0xf7, 1, b"M").extra(0x07), Form::legacy(0, 0, 0xf7, 1, b"M").extra(0x07)], // IdivR
    [Form::legacy(0, 0, 0xf7, 1, b"M").extra(0x06), Form::legacy(0, 0, 0xf7, 1, b"M").extra(0x06)], // DivR
    [Form::legacy(1, 0, 0x18, 0, b"M").extra(0x01), Form::legacy(1, 0, 0x18, 0, b"M").extra(0x01)], // PrefetchT0
    [Form::legacy(1, 0, 0x18, 0, b"M").extra(0x02), Form::legacy(1, 0, 0x18, 0, b"M").extra(0x02)], // PrefetchT1
    [Form::legacy(1, 0, 0x0d, 0, b"M").extra(0x01), Form::legacy(1, 0, 0x0d, 0, b"M").extra(0x01)], // PrefetchW
    [Form::legacy(1, 0, 0x18, 0, b"M").extra(0x00), Form::legacy(1, 0, 0x18, 0, b"M").extra(0x00)], // PrefetchNta
    [Form::legacy(1, 0, 0xae, 0, b"").extra(0xf8), Form::legacy(1, 0, 0xae, 0, b"").extra(0xf8)], // Sfence
    [Form::vex(1, 0, 0x77, 0, b"").length(0), Form::vex(1, 0, 0x77, 0, b"").length(0)], // VZeroUpper
    [Form::legacy(0, 0, 0x50, 0, b"O"), Form::legacy(0, 0, 0x50, 0, b"O")], // Push
    [Form::legacy(0, 0, 0x58, 0, b"O"), Form::legacy(0, 0, 0x58, 0, b"O")], // Pop
    [Form::legacy(0, 0, 0xc3, 0, b""), Form::legacy(0, 0, 0xc3, 0, b"")], // Ret
    [Form::vex(2, 0, 0x49, 0, b"M").extra(0x00).length(0), Form::vex(2, 0, 0x49, 0, b"M").extra(0x00).length(0)], // LdTileCfg
    [Form::vex(2, 0, 0x49, 0, b"").extra(0xc0).length(0), Form::vex(2, 0, 0x49, 0, b"").extra(0xc0).length(0)], // TileRelease
    [Form::vex(2, 3, 0x49, 0, b"R").length(0), Form::vex(2, 3, 0x49, 0, b"R").length(0)], // TileZero
    [Form::vex(2, 3, 0x4b, 0, b"RB").length(0), Form::vex(2, 3, 0x4b, 0, b"RB").length(0)], // TileLoadD
    [Form::vex(2, 1, 0x4b, 0, b"RB").length(0), Form::vex(2, 1, 0x4b, 0, b"RB").length(0)], // TileLoadT1
    [Form::vex(2, 2, 0x4b, 0, b"BR").length(0), Form::vex(2, 2, 0x4b, 0, b"BR").length(0)], // TileStoreD
    [Form::vex(2, 2, 0x5c, 0, b"RMV").length(0), Form::vex(2, 2, 0x5c, 0, b"RMV").length(0)], // TdpBf16Ps
    [Form::vex(2, 3, 0x5e, 0, b"RMV").length(0), Form::vex(2, 3, 0x5e, 0, b"RMV").length(0)], // TdpBssd
    [Form::vex(2, 1, 0x5e, 0, b"RMV").length(0), Form::vex(2, 1, 0x5e, 0, b"RMV").length(0)], // TdpBusd
    [Form::vex(2, 2, 0x5e, 0, b"RMV").length(0), Form::vex(2, 2, 0x5e, 0, b"RMV").length(0)], // TdpBsud
    [Form::vex(2, 0, 0x5e, 0, b"RMV").length(0), Form::vex(2, 0, 0x5e, 0, b"RMV").length(0)], // TdpBuud
    [Form::vex(2, 3, 0x5c, 0, b"RMV").length(0), Form::vex(2, 3, 0x5c, 0, b"RMV").length(0)], // TdpFp16Ps
    [Form::NONE, Form::NONE], // FmaddPs
    [Form::NONE, Form::NONE], // FnmaddPs
    [Form::NONE, Form::NONE], // FmsubPs
    [Form::NONE, Form::NONE], // FmaddPd
    [Form::NONE, Form::NONE], // FnmaddPd
    [Form::NONE, Form::NONE], // FmsubPd
    [Form::NONE, Form::NONE], // VZero
    [Form::NONE, Form::NONE], // DivS
    [Form::NONE, Form::NONE], // RemS
    [Form::NONE, Form::NONE], // DivU
    [Form::NONE, Form::NONE], // RemU
];
